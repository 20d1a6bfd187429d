// Command millrace is the client: it generates, chats, loads, watches and measures over gRPC, against a scheduler or a
// single worker, and trains vector codebooks there.
//
// `millrace --help` lists the commands and the exit codes. main.go connects the process (arguments, terminal, signals,
// environment) to package cli, which holds the commands; everything else is below internal.
package main
