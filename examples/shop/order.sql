
CREATE TABLE IF NOT EXISTS orders (
    id       text PRIMARY KEY,
    sku      text NOT NULL,
    quantity int  NOT NULL,
    -- PLACED → CONFIRMED or REJECTED; PLACED or CONFIRMED → CANCELLING → CANCELLED
    state    text NOT NULL DEFAULT 'PLACED'
);
CREATE TABLE IF NOT EXISTS purchase (id text PRIMARY KEY, sku text NOT NULL, quantity int NOT NULL);
