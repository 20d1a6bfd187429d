package codebookfile

import "strings"

// trainingPrefix begins the keys of the texts that tell of the training.
const trainingPrefix = "training."

// Training returns the texts that tell which rows and parameters made the codebook, by name. The map is the caller's.
func (f *File) Training() map[string]string {
	out := map[string]string{}
	for key, text := range f.file.Metadata() {
		if name, ok := strings.CutPrefix(key, trainingPrefix); ok {
			out[name] = text
		}
	}
	return out
}
