"""Who may do what through a gateway: identities, hashed secrets, rules, rates and TLS.

`secrets.py`, `rules.py` and `rates.py` are pure; `gate.py` decides about a request, `tls.py` makes contexts.
"""
