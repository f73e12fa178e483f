-- What a DBA does before `walrelay setup --role walrelay`: a role that can log in.
-- The password is this toy stack's own.
CREATE ROLE walrelay LOGIN REPLICATION PASSWORD 'walrelay';
