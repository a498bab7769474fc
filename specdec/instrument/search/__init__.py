"""The search for the draft length, the schedule and the drafter that suit a pair best."""
