-- The last bid of each bidder for each auction.
SELECT * EXCEPT (place)
FROM (
  SELECT *, row_number() OVER (PARTITION BY bidder, auction ORDER BY date_time DESC, price DESC) AS place FROM bid
) AS last_bids
WHERE place = 1
