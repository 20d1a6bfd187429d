package command

// NextTo is nextTo for tests.
var NextTo = nextTo
