"""Analytical capacity planner for distributed deep-learning training."""
