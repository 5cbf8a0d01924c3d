//! The signature of a recall handle: HMAC-SHA256 (RFC 2104, FIPS 180-4) under a secret of the broker group, cut to half.
//!
//! Python makes the secret, keeps it in the journal and checks signatures with its own implementation
//! (`python/metaq/broker/state/recall_key.py`). A handle is signed for messages that wait, and never for others, so this
//! is written for clarity.

const BLOCK: usize = 64;
/// Bytes of a signature.
pub(crate) const LENGTH: usize = 16;

/// The signature of a text under a key.
pub(crate) fn sign(key: &[u8], text: &[u8]) -> [u8; LENGTH] {
    let mut padded = [0; BLOCK];
    let hashed = sha256(&[key]);
    let short = if key.len() > BLOCK { &hashed[..] } else { key };
    padded[..short.len()].copy_from_slice(short);
    let inner = sha256(&[&padded.map(|byte| byte ^ 0x36), text]);
    let outer = sha256(&[&padded.map(|byte| byte ^ 0x5C), &inner]);
    let mut signature = [0; LENGTH];
    signature.copy_from_slice(&outer[..LENGTH]);
    signature
}

/// SHA-256 of the parts, one after the other.
fn sha256(parts: &[&[u8]]) -> [u8; 32] {
    let mut message = parts.concat();
    let bits = (message.len() as u64).wrapping_mul(8);
    message.push(0x80);
    while message.len() % BLOCK != BLOCK - 8 {
        message.push(0);
    }
    message.extend_from_slice(&bits.to_be_bytes());
    let mut state = INITIAL;
    for block in message.chunks_exact(BLOCK) {
        compress(&mut state, block);
    }
    let mut digest = [0; 32];
    for (bytes, word) in digest.chunks_exact_mut(4).zip(state) {
        bytes.copy_from_slice(&word.to_be_bytes());
    }
    digest
}

fn compress(state: &mut [u32; 8], block: &[u8]) {
    let mut words = [0_u32; 64];
    for (word, bytes) in words.iter_mut().zip(block.chunks_exact(4)) {
        *word = bytes.iter().fold(0, |value, byte| (value << 8) | u32::from(*byte));
    }
    for at in 16..64 {
        let (a, b) = (words[at - 15], words[at - 2]);
        let first = a.rotate_right(7) ^ a.rotate_right(18) ^ (a >> 3);
        let second = b.rotate_right(17) ^ b.rotate_right(19) ^ (b >> 10);
        words[at] = words[at - 16].wrapping_add(first).wrapping_add(words[at - 7]).wrapping_add(second);
    }
    let [mut a, mut b, mut c, mut d, mut e, mut f, mut g, mut h] = *state;
    for (constant, word) in CONSTANTS.iter().zip(words) {
        let sum = e.rotate_right(6) ^ e.rotate_right(11) ^ e.rotate_right(25);
        let choice = e & f ^ !e & g;
        let first = h.wrapping_add(sum).wrapping_add(choice).wrapping_add(*constant).wrapping_add(word);
        let sum = a.rotate_right(2) ^ a.rotate_right(13) ^ a.rotate_right(22);
        let second = sum.wrapping_add(a & b ^ a & c ^ b & c);
        (h, g, f, e, d, c, b, a) = (g, f, e, d.wrapping_add(first), c, b, a, first.wrapping_add(second));
    }
    for (value, added) in state.iter_mut().zip([a, b, c, d, e, f, g, h]) {
        *value = value.wrapping_add(added);
    }
}

#[rustfmt::skip]
const INITIAL: [u32; 8] = [
    0x6A09_E667, 0xBB67_AE85, 0x3C6E_F372, 0xA54F_F53A, 0x510E_527F, 0x9B05_688C, 0x1F83_D9AB, 0x5BE0_CD19,
];

#[rustfmt::skip]
const CONSTANTS: [u32; 64] = [
    0x428A_2F98, 0x7137_4491, 0xB5C0_FBCF, 0xE9B5_DBA5, 0x3956_C25B, 0x59F1_11F1, 0x923F_82A4, 0xAB1C_5ED5,
    0xD807_AA98, 0x1283_5B01, 0x2431_85BE, 0x550C_7DC3, 0x72BE_5D74, 0x80DE_B1FE, 0x9BDC_06A7, 0xC19B_F174,
    0xE49B_69C1, 0xEFBE_4786, 0x0FC1_9DC6, 0x240C_A1CC, 0x2DE9_2C6F, 0x4A74_84AA, 0x5CB0_A9DC, 0x76F9_88DA,
    0x983E_5152, 0xA831_C66D, 0xB003_27C8, 0xBF59_7FC7, 0xC6E0_0BF3, 0xD5A7_9147, 0x06CA_6351, 0x1429_2967,
    0x27B7_0A85, 0x2E1B_2138, 0x4D2C_6DFC, 0x5338_0D13, 0x650A_7354, 0x766A_0ABB, 0x81C2_C92E, 0x9272_2C85,
    0xA2BF_E8A1, 0xA81A_664B, 0xC24B_8B70, 0xC76C_51A3, 0xD192_E819, 0xD699_0624, 0xF40E_3585, 0x106A_A070,
    0x19A4_C116, 0x1E37_6C08, 0x2748_774C, 0x34B0_BCB5, 0x391C_0CB3, 0x4ED8_AA4A, 0x5B9C_CA4F, 0x682E_6FF3,
    0x748F_82EE, 0x78A5_636F, 0x84C8_7814, 0x8CC7_0208, 0x90BE_FFFA, 0xA450_6CEB, 0xBEF9_A3F7, 0xC671_78F2,
];

#[cfg(test)]
mod tests {
    use super::*;

    fn hex(bytes: &[u8]) -> String {
        let digits = bytes.iter().flat_map(|byte| [byte >> 4, byte & 15]);
        digits.filter_map(|digit| char::from_digit(digit.into(), 16)).collect()
    }

    #[test]
    fn hashes_are_those_of_the_standard() {
        for (text, digest) in [
            (vec![97_u8; 0], "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"),
            (vec![97_u8; 3], "9834876dcfb05cb167a5c24953eba58c4ac89b1adf57f28f2f9d09af107ee8f0"),
            (vec![98_u8; 55], "eb2c86e932179f4ba13fe8715a26124b77d6bad290b9b4c1cc140cf633300c19"),
            (vec![99_u8; 56], "f6c7b87acd114115d66897c8cb138c16a8b886673d1b93737f4918be472ea878"),
            (vec![100_u8; 64], "d91323a5298f3b9f814db29efaa271f24fbdccedfdd062491b8abc8e07b7fb69"),
            (vec![101_u8; 1000], "81ca118e79986ea73d8d7ecca0b00d8b026a502e523d16a9b96ed6e09db3c812"),
        ] {
            assert_eq!(hex(&sha256(&[&text])), digest, "{} bytes", text.len());
        }
    }

    #[test]
    fn signatures_are_those_of_rfc_4231() {
        for (key, text, signature) in [
            (vec![11_u8; 20], &b"Hi There"[..], "b0344c61d8db38535ca8afceaf0bf12b"),
            (
                vec![170_u8; 131],
                &b"Test Using Larger Than Block-Size Key - Hash Key First"[..],
                "60e431591ee0b67f0d8a26aacbf5b77f",
            ),
        ] {
            assert_eq!(hex(&sign(&key, text)), signature);
        }
    }
}
