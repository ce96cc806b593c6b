-- The average of the final prices of a category's auctions.
WITH final_prices AS (
  SELECT a.id, a.category, max(b.price) AS final
  FROM auction AS a JOIN bid AS b
    ON a.id = b.auction
   AND b.date_time BETWEEN a.date_time AND a.date_time + INTERVAL '1' HOUR
   AND b.date_time <= a.expires
  GROUP BY a.id, a.category
)
SELECT category, avg(final) AS average FROM final_prices GROUP BY category
