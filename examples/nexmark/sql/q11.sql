-- User sessions: how many bids a person makes with breaks of ten seconds at most.
SELECT bidder, window_start, window_end, count(*) AS bids
FROM TABLE(SESSION(TABLE bid PARTITION BY bidder, DESCRIPTOR(date_time), INTERVAL '10' SECONDS))
GROUP BY bidder, window_start, window_end
