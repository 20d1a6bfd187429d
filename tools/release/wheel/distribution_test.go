package main

import (
	"archive/zip"
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"encoding/csv"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"testing/fstest"
	"time"
)

var example = distribution{
	name: "Some.Example-lib", version: "1.2.3", summary: "An example", licence: "Apache-2.0", python: ">=3.9",
	requires: []string{"grpcio>=1.51"}, readme: "# Read me\n", time: time.Unix(1_700_000_000, 0).UTC(),
}

var folder = fstest.MapFS{
	"example/b.py": {Data: []byte("B = 2\n")}, "example/a.py": {Data: []byte("A = 1\n")}, "example/v1/c.py": {Data: nil},
}

func pack(t *testing.T) []byte {
	t.Helper()
	var out bytes.Buffer
	if err := example.write(&out, folder); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

func TestTheSameFilesGiveTheSameBytes(t *testing.T) {
	if !bytes.Equal(pack(t), pack(t)) {
		t.Fatal("two wheels of the same files differ")
	}
}

// The record names every file once, with its digest and size, and itself without them.
func TestTheRecordIsOfEveryFile(t *testing.T) {
	wheel := pack(t)
	r, err := zip.NewReader(bytes.NewReader(wheel), int64(len(wheel)))
	if err != nil {
		t.Fatal(err)
	}
	files := map[string][]byte{}
	for _, f := range r.File {
		in, err := f.Open()
		if err != nil {
			t.Fatal(err)
		}
		if files[f.Name], err = io.ReadAll(in); err != nil {
			t.Fatal(err)
		}
		if !f.Modified.Equal(example.time) {
			t.Errorf("%s is of %v", f.Name, f.Modified)
		}
	}
	const record = "some_example_lib-1.2.3.dist-info/RECORD"
	lines, err := csv.NewReader(bytes.NewReader(files[record])).ReadAll()
	if err != nil {
		t.Fatal(err)
	}
	if len(lines) != len(files) || len(files) != 6 {
		t.Fatalf("%d lines for %d files", len(lines), len(files))
	}
	for _, line := range lines {
		data, there := files[line[0]]
		sum := sha256.Sum256(data)
		switch {
		case !there:
			t.Errorf("%s is not there", line[0])
		case line[0] == record && line[1]+line[2] != "":
			t.Errorf("the record's own line is %q", line)
		case line[0] != record && line[1] != "sha256="+base64.RawURLEncoding.EncodeToString(sum[:]):
			t.Errorf("%s: digest %s", line[0], line[1])
		}
	}
	metadata := string(files["some_example_lib-1.2.3.dist-info/METADATA"])
	for _, want := range []string{"Name: Some.Example-lib\n", "Requires-Dist: grpcio>=1.51\n", "text/markdown\n\n# Read me\n"} {
		if !strings.Contains(metadata, want) {
			t.Errorf("no %q in\n%s", want, metadata)
		}
	}
}

func TestPipInstallsIt(t *testing.T) {
	if exec.Command("python3", "-m", "pip", "--version").Run() != nil {
		t.Skip("no pip: apt install python3-pip")
	}
	from, dir, target := t.TempDir(), t.TempDir(), t.TempDir()
	if err := os.CopyFS(from, folder); err != nil {
		t.Fatal(err)
	}
	d := example
	if err := run(&d, nil, "", dir, 1_700_000_000, []string{from}); err != nil {
		t.Fatal(err)
	}
	wheel := filepath.Join(dir, "some_example_lib-1.2.3-py3-none-any.whl")
	pip := exec.Command("python3", "-m", "pip", "install", "--no-index", "--no-deps", "--target", target, wheel)
	if out, err := pip.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	python := exec.Command("python3", "-c", "import example.a, example.b, example.v1.c; print(example.a.A + example.b.B)")
	python.Env = append(os.Environ(), "PYTHONPATH="+target)
	if out, err := python.CombinedOutput(); err != nil || string(out) != "3\n" {
		t.Fatalf("%v\n%s", err, out)
	}
}
