// Package filecache caches what it parsed from files, so that a file that has not changed is not read again.
//
// A folder's catalog keeps a Cache and calls Get for each file that it lists. The Cache reads a file if its identity differs from the
// last time: device, inode, size, time of modification and time of change. The last one sees what the others miss: a new mode, and bytes
// written under a modification time that was set back.
//
// An error of the operating system is returned and not remembered, because its cause may pass without a change of the file: no
// permission in a folder above, no file descriptor, no memory, a network disk that does not answer.
package filecache
