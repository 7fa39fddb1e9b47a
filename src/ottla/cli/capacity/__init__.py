"""`ottla capacity`: what a load needs, from rules and rates."""
