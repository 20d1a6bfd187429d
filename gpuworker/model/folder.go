package model

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/millrace/millrace/gpuworker/gguf"
)

// layout counts the files of a folder in the form in which Hugging Face distributes models.
type layout struct {
	config, weights bool
	bytes           uint64 // of the weights
}

const configName = "config.json"

// isWeights reports whether a file of this name holds weights in that layout.
func isWeights(name string) bool {
	return strings.HasSuffix(name, ".safetensors") || strings.HasPrefix(name, "pytorch_model") && strings.HasSuffix(name, ".bin")
}

// add counts a file of the folder.
func (l *layout) add(d fs.DirEntry) {
	switch name := d.Name(); {
	case name == configName:
		l.config = true
	case isWeights(name):
		l.weights = true
		if info, err := d.Info(); err == nil {
			l.bytes += uint64(max(info.Size(), 0))
		}
	}
}

func (l *layout) whole() bool { return l.config && l.weights }

// problem describes the folder and the next step. name is "." for the models directory itself.
func (l *layout) problem(name string) error {
	what, result := fmt.Sprintf("%q is a folder", name), path.Base(name)+extension
	if name == "." {
		what, result = "the models directory is itself a folder", "a file NAME"+extension
	}
	return fmt.Errorf("%w: %s of a model as Hugging Face has it (config.json and safetensors or PyTorch weights): convert it with "+
		"llama.cpp's convert_hf_to_gguf.py and put %s into the models directory, or download the model as GGUF", gguf.ErrFormat, what, result)
}

// layouts collects the folders of a walk.
type layouts map[string]*layout // by path

// add counts a file at a path below the models directory. A file that belongs to no model takes no memory: the directory may
// hold anything.
func (l layouts) add(file string, d fs.DirEntry) {
	if d.Name() != configName && !isWeights(d.Name()) {
		return
	}
	dir := path.Dir(file)
	if l[dir] == nil {
		l[dir] = &layout{}
	}
	l[dir].add(d)
}

// entries describes those that hold a model, but for names that a file has.
func (l layouts) entries(taken map[string]bool) (entries []Entry) {
	for _, dir := range slices.Sorted(maps.Keys(l)) {
		if l[dir].whole() && !taken[dir] {
			entries = append(entries, Entry{Name: printable(dir), Bytes: l[dir].bytes, Problem: l[dir].problem(printable(dir))})
		}
	}
	return entries
}

// missing returns the error for a name without a file; it names the files that exist instead.
func missing(root *os.Root, name string) error {
	files, err := fs.ReadDir(root.FS(), filepath.ToSlash(name))
	if err != nil { // no such folder, or none that can be read
		return fmt.Errorf("%w: %q; there is no file %q in the models directory", ErrNotFound, name, name+extension)
	}
	l, models := layout{}, []string{}
	for _, f := range files {
		l.add(f)
		if model, ok := strings.CutSuffix(f.Name(), extension); ok && CheckName(model) == nil && len(models) < 5 {
			models = append(models, name+"/"+model)
		}
	}
	switch {
	case l.whole():
		return l.problem(name)
	case len(models) > 0:
		return fmt.Errorf("%w: %q is a folder; the models in it are called %s", ErrNotFound, name, strings.Join(models, ", "))
	}
	return fmt.Errorf("%w: %q is a folder, and no model in it is a file NAME%s", ErrNotFound, name, extension)
}

// Advice says why a models directory has no model that can be loaded, and what to do; "" if it has one.
func Advice(entries []Entry) string {
	var problems []error
	for _, e := range entries {
		if e.Problem == nil {
			return ""
		}
		problems = append(problems, fmt.Errorf("%s: %w", e.Name, e.Problem))
	}
	switch n := len(problems); {
	case n == 0:
		return "it holds no file NAME" + extension + ": put model files there, or give another folder with --models"
	case n > 3:
		problems = append(problems[:3], fmt.Errorf("and %d more, which `millrace models` lists", n-3))
	}
	return strings.ReplaceAll(errors.Join(problems...).Error(), "\n", "; ")
}
