package tokenizer

import "strings"

// Special holds the ids with a special role; None if the vocabulary has no such token.
type Special struct {
	BOS, EOS, EOT, EOM, UNK, PAD int32
}

func readSpecial(src Source, v *vocab, model string) (sp Special, err error) {
	bos, eos, unk := None, None, None
	if model == modelSPM {
		bos, eos, unk = 1, 2, 0 // SentencePiece's defaults
	}
	for _, f := range []struct {
		to       *int32
		key      string
		fallback int32
	}{
		{&sp.BOS, keyBOS, bos},
		{&sp.EOS, keyEOS, eos},
		{&sp.EOT, keyEOT, None},
		{&sp.EOM, keyEOM, None},
		{&sp.UNK, keyUNK, unk},
		{&sp.PAD, keyPAD, None},
	} {
		if *f.to, err = idOr(src, f.key, len(v.pieces), f.fallback); err != nil {
			return Special{}, err
		}
	}
	return sp, nil
}

// stripsRight reports which special tokens absorb the white space after them: all but three of the
// phi-3 family, whose files do not mark it.
func stripsRight(modelName string, v *vocab, id int32) bool {
	name := strings.ToLower(modelName)
	if !strings.Contains(name, "phi-3") && !strings.Contains(name, "phi3") {
		return false
	}
	switch v.pieces[id] {
	case "<unk>", "<s>", "<|endoftext|>":
		return false
	}
	switch v.kinds[id] {
	case KindControl, KindUserDefined, KindUnknown:
		return true
	}
	return false
}
