-- The ten highest bids of each auction.
SELECT *
FROM (
  SELECT *, row_number() OVER (PARTITION BY auction ORDER BY price DESC, date_time, bidder) AS place FROM bid
) AS highest
WHERE place <= 10
