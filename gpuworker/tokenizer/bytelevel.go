package tokenizer

// Byte-level vocabularies write each byte as one printable character: printable Latin-1 bytes as
// themselves, the others, in order, as the characters from U+0100 on.
var runeOfByte, byteOfRune = byteLevelRunes()

func byteLevelRunes() (runeOf [256]rune, byteOf map[rune]byte) {
	byteOf = make(map[rune]byte, len(runeOf))
	next := rune(0x100)
	for b := range 256 {
		r := rune(b)
		printable := b >= '!' && b <= '~' || b >= 0xA1 && b <= 0xAC || b >= 0xAE
		if !printable {
			r, next = next, next+1
		}
		runeOf[b], byteOf[r] = r, byte(b)
	}
	return runeOf, byteOf
}

// byteLevel returns the bytes of a byte-level piece. ok is false if a character stands for none.
func byteLevel(piece string) (raw []byte, ok bool) {
	raw = make([]byte, 0, len(piece))
	for _, r := range piece {
		b, is := byteOfRune[r]
		if !is {
			return nil, false
		}
		raw = append(raw, b)
	}
	return raw, true
}
