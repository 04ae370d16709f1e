"""What a person may change by hand: finish, roll back, collect, copy. Each follows the protocol, beside a live job too."""
