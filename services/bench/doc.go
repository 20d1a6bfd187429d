// Command millrace-bench answers four questions: how fast is a device (engine, ops, memory,
// vectors), how fast is a server (load, prefix, cancel, overload, fairness), what do the scheduler
// and its routing cost and gain (relay, replay), and how to make a model of random weights
// (synth). The commands chaos and rig inject faults into workers and schedulers and compare every
// stream with an undisturbed one. bench/README.md explains the figures.
//
// main.go connects the process to package command; everything else is in internal.
package main
