"""Prediction of how a training scales, from measurements on few ranks to many, and the limits of the prediction."""
