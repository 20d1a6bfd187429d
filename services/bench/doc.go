// Command millrace-bench measures Millrace: engine (an engine against its device's roofs), ops (its plain operations beside
// the CPU engine's), memory (copies, the pool, and asking for too much), load (a server under load), relay (what the
// scheduler adds), chaos (whether streams outlive workers and schedulers), rig (what a fleet of containers loses when it is broken),
// replay, restart and fleet (a fleet under schedulers), and synth, which writes the model files of random weights that they run on.
//
// main.go connects the process to package command, which holds the commands; everything else is below internal.
package main
