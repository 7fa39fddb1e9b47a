"""HTTP in front of Kafka: a guarded server, bodies into records, outcomes into answers.

`guard.py` and `server.py` receive requests; `bodies.py`, `rest_bodies.py` and `answers.py` are pure; `producing.py`
hands records over and waits; `app.py` has the routes. Reading by HTTP belongs beside `native.py` and `rest.py`.
"""
