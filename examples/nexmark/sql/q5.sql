-- Hot items: the auctions with the most bids in the last ten seconds, every two seconds.
WITH bids_per_auction AS (
  SELECT auction, count(*) AS bids, window_start, window_end
  FROM TABLE(HOP(TABLE bid, DESCRIPTOR(date_time), INTERVAL '2' SECONDS, INTERVAL '10' SECONDS))
  GROUP BY auction, window_start, window_end
)
SELECT auction, bids, window_end AS until
FROM (
  SELECT *, rank() OVER (PARTITION BY window_start, window_end ORDER BY bids DESC) AS place FROM bids_per_auction
) AS hottest
WHERE place = 1
