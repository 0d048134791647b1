"""Observe which keys the queries of a model may attend to."""
