-- The average final price of a seller's last ten auctions.
WITH bids_in_time AS (
  SELECT b.auction, b.bidder, b.price, b.date_time, a.seller, a.expires
  FROM bid AS b JOIN auction AS a
    ON b.auction = a.id
   AND b.date_time BETWEEN a.date_time AND a.date_time + INTERVAL '1' HOUR
   AND b.date_time <= a.expires
),
winning AS (
  SELECT * FROM (
    SELECT *, row_number() OVER (PARTITION BY auction ORDER BY price DESC, date_time, bidder) AS place FROM bids_in_time
  ) WHERE place = 1
),
last_ten AS (
  SELECT * FROM (
    SELECT seller, price, row_number() OVER (PARTITION BY seller ORDER BY expires DESC, auction DESC) AS place
    FROM winning
  ) WHERE place <= 10
)
SELECT seller, avg(price) AS average FROM last_ten GROUP BY seller
