"""Who may do what through a gateway: identities, hashed secrets, rules and rates.

`secrets.py`, `rules.py` and `rates.py` are pure; `gate.py` decides about a request.
"""
