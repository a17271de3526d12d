"""A method, a data set, two optimizers and a model for evenly, in a package of their own."""
