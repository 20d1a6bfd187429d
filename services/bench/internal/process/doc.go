// Package process starts programs that are to be measured, and asks the kernel what they use.
//
// Start runs a program and keeps the end of its log; CPU and Memory read /proc; Stop ends it as an operator would and
// says if it did not end well. It knows no program of ours.
package process
