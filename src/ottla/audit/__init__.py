"""What tallies prove: tiers side by side, and the records that differ between two of them.

`notes` collects tallies from the audit topic, `coverage` and `counts` add them up and know what is missing, `compare`
gives each bucket its verdict, `find` names records. The pure parts decide; `jobs` run them.
"""
