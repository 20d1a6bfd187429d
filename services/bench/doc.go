// Command millrace-bench measures Millrace, a command for each thing: an engine (engine, ops, memory), a server under load (load,
// prefix, cancel, overload, fairness), what a scheduler adds to a stream (relay), and schedulers over a fleet (replay, restart,
// fleet). Two break workers and schedulers and hold every stream to its tokens: chaos, which starts them as processes, and rig, which
// takes them in containers. synth writes the model files of random weights. bench/README.md explains every figure.
//
// main.go connects the process to package command, which holds the commands; everything else is below internal.
package main
