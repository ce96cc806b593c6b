-- Bids with who made them and what those sell themselves: a join of three streams.
SELECT b.*, p.name, p.email_address, p.credit_card, p.city, p.state, p.date_time AS date_time_of_person,
       p.extra AS extra_of_person, a.id, a.item_name, a.description, a.initial_bid, a.reserve,
       a.date_time AS date_time_of_auction, a.expires, a.category, a.extra AS extra_of_auction
FROM bid AS b JOIN person AS p ON p.id = b.bidder JOIN auction AS a ON a.seller = b.bidder
