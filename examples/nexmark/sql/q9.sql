-- The winning bid of each auction.
WITH bids_in_time AS (
  SELECT b.*, a.item_name, a.description, a.initial_bid, a.reserve, a.date_time AS date_time_of_auction, a.expires,
         a.seller, a.category, a.extra AS extra_of_auction
  FROM bid AS b JOIN auction AS a
    ON b.auction = a.id
   AND b.date_time BETWEEN a.date_time AND a.date_time + INTERVAL '1' HOUR
   AND b.date_time <= a.expires
)
SELECT * EXCEPT (place)
FROM (
  SELECT *, row_number() OVER (PARTITION BY auction ORDER BY price DESC, date_time, bidder) AS place FROM bids_in_time
) AS winning
WHERE place = 1
