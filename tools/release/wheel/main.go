// Command wheel packs a folder of Python as a wheel (the binary distribution format, version 1.0): the files as they are, in order,
// with the metadata that installers want. The same files and flags give the same bytes.
package main

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"strings"
	"time"
)

// texts is a flag that may be given several times.
type texts []string

func (t *texts) String() string { return strings.Join(*t, ", ") }

// Set implements flag.Value.
func (t *texts) Set(text string) error {
	*t = append(*t, text)
	return nil
}

func main() {
	var d distribution
	var requires texts
	flag.StringVar(&d.name, "name", "", "name of the distribution")
	flag.StringVar(&d.version, "version", "", "its version")
	flag.StringVar(&d.summary, "summary", "", "what it is, in a line")
	flag.StringVar(&d.licence, "licence", "", "its SPDX licence expression")
	flag.StringVar(&d.python, "python", "", "versions of Python that it runs on, such as >=3.9")
	flag.Var(&requires, "requires", "a distribution that it needs, such as grpcio>=1.51; may be given several times")
	readme := flag.String("readme", "", "file of its description, in Markdown")
	seconds := flag.Int64("time", 0, "time of its files, in seconds since 1970")
	out := flag.String("out", "", "folder to write it to; its name follows from name and version")
	flag.Parse()
	if err := run(&d, requires, *readme, *out, *seconds, flag.Args()); err != nil {
		fmt.Fprintln(os.Stderr, "wheel:", err)
		os.Exit(1)
	}
}

func run(d *distribution, requires []string, readme, out string, seconds int64, folders []string) (err error) {
	if len(folders) != 1 || d.name == "" || d.version == "" || out == "" {
		return errors.New("want --name, --version, --out and one folder")
	}
	d.requires, d.time = requires, time.Unix(seconds, 0).UTC()
	if readme != "" {
		text, err := os.ReadFile(readme)
		if err != nil {
			return err
		}
		d.readme = string(text)
	}
	file, err := os.Create(d.path(out))
	if err != nil {
		return err
	}
	return errors.Join(d.write(file, os.DirFS(folders[0])), file.Close())
}
