
CREATE TABLE IF NOT EXISTS stock (sku text PRIMARY KEY, quantity int NOT NULL DEFAULT 0 CHECK (quantity >= 0));
CREATE TABLE IF NOT EXISTS reservation (
    order_id text PRIMARY KEY,
    sku      text NOT NULL,
    quantity int  NOT NULL,
    state    text NOT NULL, -- RESERVED → RELEASED; REFUSED
    releases int  NOT NULL DEFAULT 0
);
