package main

import (
	"archive/zip"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"io"
	"io/fs"
	"path"
	"path/filepath"
	"regexp"
	"strings"
	"time"
)

// distribution is the metadata of a wheel.
type distribution struct {
	name, version, summary, licence, python, readme string
	requires                                        []string
	time                                            time.Time // of its files
}

// separators are written as one underscore in names of files.
var separators = regexp.MustCompile(`[-_.]+`)

// stem is the part of a file's name that has the name and the version.
func (d *distribution) stem() string {
	return strings.ToLower(separators.ReplaceAllString(d.name, "_")) + "-" + d.version
}

// path is the wheel's file in a folder: for every Python 3 and every machine.
func (d *distribution) path(folder string) string {
	return filepath.Join(folder, d.stem()+"-py3-none-any.whl")
}

// write packs every file of a folder.
func (d *distribution) write(to io.Writer, folder fs.FS) error {
	w := &writer{zip: zip.NewWriter(to), time: d.time}
	err := fs.WalkDir(folder, ".", func(name string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		data, err := fs.ReadFile(folder, name)
		if err != nil {
			return err
		}
		return w.add(name, data)
	})
	if err != nil {
		return err
	}
	info := d.stem() + ".dist-info"
	for _, file := range []struct{ name, text string }{
		{"METADATA", d.metadata()},
		{"WHEEL", "Wheel-Version: 1.0\nGenerator: millrace-wheel (1)\nRoot-Is-Purelib: true\nTag: py3-none-any\n"},
	} {
		if err := w.add(path.Join(info, file.name), []byte(file.text)); err != nil {
			return err
		}
	}
	record := path.Join(info, "RECORD")
	if err := w.add(record, []byte(w.record.String()+record+",,\n")); err != nil {
		return err
	}
	return w.zip.Close()
}

// metadata is in version 2.1 of the core metadata, which every installer of today knows.
func (d *distribution) metadata() string {
	var b strings.Builder
	field := func(name, value string) {
		if value != "" {
			fmt.Fprintf(&b, "%s: %s\n", name, value)
		}
	}
	field("Metadata-Version", "2.1")
	field("Name", d.name)
	field("Version", d.version)
	field("Summary", d.summary)
	field("License", d.licence)
	field("Requires-Python", d.python)
	for _, r := range d.requires {
		field("Requires-Dist", r)
	}
	if d.readme != "" {
		field("Description-Content-Type", "text/markdown")
		b.WriteString("\n" + d.readme)
	}
	return b.String()
}

// writer packs files and notes them.
type writer struct {
	zip    *zip.Writer
	time   time.Time
	record strings.Builder // a line a file: name, digest, bytes
}

func (w *writer) add(name string, data []byte) error {
	header := &zip.FileHeader{Name: name, Method: zip.Deflate, Modified: w.time}
	header.SetMode(0o644)
	file, err := w.zip.CreateHeader(header)
	if err != nil {
		return err
	}
	sum := sha256.Sum256(data)
	fmt.Fprintf(&w.record, "%s,sha256=%s,%d\n", name, base64.RawURLEncoding.EncodeToString(sum[:]), len(data))
	_, err = file.Write(data)
	return err
}
