-- Bids with their auctions, of one category.
SELECT b.*, a.item_name, a.description, a.initial_bid, a.reserve, a.date_time AS date_time_of_auction, a.expires,
       a.seller, a.category, a.extra AS extra_of_auction
FROM bid AS b JOIN auction AS a ON b.auction = a.id
WHERE a.category = 10
