package vectors

import (
	"fmt"
	"regexp"
	"strings"
)

// extension of codebook files.
const extension = ".safetensors"

// maxName leaves room in a file's name, which may have 255 bytes, for the extension and for what a file is called while it is
// written.
const maxName = 200

var nameRule = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9._-]*(/[A-Za-z0-9_][A-Za-z0-9._-]*)*$`)

// deviceRule are the names that some systems keep for devices, whatever follows behind a dot.
var deviceRule = regexp.MustCompile(`(?i)^(con|prn|aux|nul|com[0-9]|lpt[0-9])(\.|$)`)

// CheckName refuses what is not the name of a codebook: steps of letters, digits and "._-", none beginning with "." or "-", divided
// by "/", none of them a device's.
func CheckName(name string) error {
	if len(name) > maxName || !nameRule.MatchString(name) {
		return fmt.Errorf("%w: %.64q; want at most %d letters, digits and \"._-\", with \"/\" between folders, without \"%s\"",
			ErrName, name, maxName, extension)
	}
	for step := range strings.SplitSeq(name, "/") {
		if deviceRule.MatchString(step) || strings.HasSuffix(step, ".") {
			return fmt.Errorf("%w: %.64q; %q is a device on some systems, or ends in a dot: choose another name", ErrName, name, step)
		}
	}
	return nil
}
