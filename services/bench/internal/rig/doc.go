// Package rig breaks a fleet of containers under load and holds it to its promises.
//
// Run takes a Compose project that is up: schedulers at published ports, and workers with a model loaded. Clients ask for the
// same stories again and again while one section after the other kills, freezes, cuts off, drains or restarts containers;
// every answer must be, token by token, the one of the undisturbed run that comes first. A section fails when a stream does,
// when an answer differs, when a scheduler shows for longer than Config.Truth what is not so, and when nothing was at stake.
//
// It uses the docker program and the schedulers' public services, and nothing of the servers' insides. answer.go and tally.go
// are pure; client.go and load.go are the clients, board.go is what they have under way, view.go what schedulers show and
// docker.go what breaks containers; run.go puts them together, and workers.go and gentle.go are the sections.
package rig
