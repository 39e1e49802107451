"""The backend over MXNet's parameter server: keys, rows, pages and control messages."""
