-- The highest bid of every ten seconds.
SELECT auction, price, bidder, date_time, extra
FROM (
  SELECT *, rank() OVER (PARTITION BY window_start, window_end ORDER BY price DESC) AS place
  FROM TABLE(TUMBLE(TABLE bid, DESCRIPTOR(date_time), INTERVAL '10' SECONDS))
) AS highest
WHERE place = 1
