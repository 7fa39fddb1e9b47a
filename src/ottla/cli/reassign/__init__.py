"""`ottla reassign`: plans moves of replicas, carries them out, and shows and controls runs."""
