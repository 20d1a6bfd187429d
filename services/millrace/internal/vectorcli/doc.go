// Package vectorcli has the commands of millrace vectors: they train codebooks, encode and decode
// with them, and put them on workers.
//
// Command returns the command tree over a session.Session. Rows, codes and codebooks are files on
// this machine; inspect calls no server. An output file appears under its name when it is complete,
// so that a command that ends early leaves no part of one.
//
//	train:  file of rows  -> sender -> TrainCodebook -> training  -> codebook file, checkpoint, plot
//	encode: file of rows  -> pieces in parallel -> Encode -> encoding -> file of codes
//	decode: file of codes -> pieces in parallel -> Decode -> decoding -> file of rows
//
// The package chooses no worker, and computes only the reference that selftest compares.
package vectorcli
