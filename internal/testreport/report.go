package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"regexp"
	"slices"
	"strings"
)

// event is a line of "go test -json"; see "go doc cmd/test2json" for its fields.
type event struct {
	Action  string
	Package string
	Test    string
	Output  string
}

// installs matches the command that a reason to skip names: "no nginx: apt install nginx-light".
var installs = regexp.MustCompile(`apt install ([a-z0-9.+ -]*[a-z0-9+])`)

// reason matches what t.Skip printed: four spaces, the file, the line, the text.
var reason = regexp.MustCompile(`^\s+\S+\.go:\d+: (.+)\n$`)

// skips counts the skipped tests by what is missing.
type skips struct {
	tools  map[string][]string // reasons that name a command, with their tests
	others int                 // tests that no command brings: they need a GPU, another processor, files
}

// report copies what people read of the events in to out. A line that is no event, such as a
// message of the compiler, is copied as it is. The error is of reading or writing.
func report(in io.Reader, out io.Writer) error {
	output := map[[2]string]string{} // of each test that runs, by package and name
	skipped := skips{tools: map[string][]string{}}
	lines := bufio.NewReader(in)
	for {
		line, err := lines.ReadBytes('\n')
		if len(line) > 0 {
			var e event
			text := string(line)
			if json.Unmarshal(line, &e) == nil {
				text = skipped.next(output, e)
			}
			if text != "" {
				if _, err := io.WriteString(out, text); err != nil {
					return err
				}
			}
		}
		if err == io.EOF {
			_, err := io.WriteString(out, skipped.String())
			return err
		}
		if err != nil {
			return err
		}
	}
}

// next adds an event to output and to s, and returns what is printed of it.
func (s *skips) next(output map[[2]string]string, e event) string {
	key := [2]string{e.Package, e.Test}
	switch {
	case e.Action == "build-output":
		return e.Output
	case e.Test == "":
		if e.Action != "output" || e.Output == "PASS\n" || strings.HasPrefix(e.Output, "testing: warning:") {
			return ""
		}
		return e.Output
	case e.Action == "output":
		output[key] += e.Output
	case e.Action == "fail":
		defer delete(output, key)
		return output[key]
	case e.Action == "skip":
		s.add(e, output[key])
		delete(output, key)
	case e.Action == "pass":
		delete(output, key)
	}
	return ""
}

// add counts a skipped test by the last reason in its output.
func (s *skips) add(e event, output string) {
	for _, line := range slices.Backward(strings.SplitAfter(output, "\n")) {
		m := reason.FindStringSubmatch(line)
		if m == nil {
			continue
		}
		if !installs.MatchString(m[1]) {
			break
		}
		s.tools[m[1]] = append(s.tools[m[1]], e.Test)
		return
	}
	s.others++
}

// String lists the reasons, and ends with the command that installs everything that they name.
func (s *skips) String() string {
	if len(s.tools) == 0 && s.others == 0 {
		return ""
	}
	var b strings.Builder
	packages := map[string]bool{}
	for _, why := range slices.Sorted(maps.Keys(s.tools)) {
		fmt.Fprintf(&b, "skipped: %s: %s\n", strings.Join(s.tools[why], ", "), why)
		for _, name := range strings.Fields(installs.FindStringSubmatch(why)[1]) {
			packages[name] = true
		}
	}
	if s.others > 0 {
		fmt.Fprintf(&b, "skipped: %d tests that need a GPU, another processor, or files that are not part of the project\n", s.others)
	}
	if len(packages) > 0 {
		fmt.Fprintf(&b, "to run the others: apt install %s\n", strings.Join(slices.Sorted(maps.Keys(packages)), " "))
	}
	return b.String()
}
