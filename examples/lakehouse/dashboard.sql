SELECT
    shops.city,
    count(*) AS orders,
    sum(orders.price) AS revenue,
    max(orders.id) AS newest
FROM orders
JOIN shops ON orders.shop = shops.id
GROUP BY shops.city
ORDER BY revenue DESC
