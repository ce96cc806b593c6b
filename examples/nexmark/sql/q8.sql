-- New users: persons who sold something within the ten seconds in which they signed up.
SELECT DISTINCT p.id, p.name, p.window_start
FROM TABLE(TUMBLE(TABLE person, DESCRIPTOR(date_time), INTERVAL '10' SECONDS)) AS p
JOIN TABLE(TUMBLE(TABLE auction, DESCRIPTOR(date_time), INTERVAL '10' SECONDS)) AS a
  ON p.id = a.seller AND p.window_start = a.window_start AND p.window_end = a.window_end
