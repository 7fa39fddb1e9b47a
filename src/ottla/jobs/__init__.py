"""What can be done with a range of offsets: functions of one range that return a receipt and know no engine."""
