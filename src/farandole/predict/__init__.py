"""Prediction of how a training scales: from measurements on few ranks to many, and what they do not say."""
