// Package filecache caches values parsed from files, so that an unchanged file is not read again.
//
// A folder's catalog keeps a Cache and calls Get for each file that it lists, or GetSet for files
// that are one thing together. The Cache reads a file if its identity changed: device, inode, size,
// time of modification or time of change. The last one catches changes that the others miss: a new
// mode, and bytes written with a modification time that was set back.
//
// An error of the operating system is returned and not cached, because its cause may pass without a
// change of the file: no permission in a parent folder, no file descriptor, no memory, a network
// disk that does not answer.
package filecache
