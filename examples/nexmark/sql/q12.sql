-- Windows of processing time: how many bids of a person are processed in ten seconds.
SELECT bidder, window_start, window_end, count(*) AS bids
FROM TABLE(TUMBLE(TABLE bid_on_arrival, DESCRIPTOR(arrived), INTERVAL '10' SECONDS))
GROUP BY bidder, window_start, window_end
