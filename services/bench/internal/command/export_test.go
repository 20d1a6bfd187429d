package command

// Beside is for tests of where a program is looked for.
var Beside = beside
