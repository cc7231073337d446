"""Pickles of episodes that earlier versions wrote."""

from __future__ import annotations

import base64
import pickle
import zlib

OLD = (
    "c-n<kTW=dh6poWPaT}*J38WH2rLENBmdeOZ<JxMVH&6(Mt(1beNYQ9^cQ$8Ldv`lKn-DH47q!H2UQmbr41NIbyzwLW2|V@<&dhF{"
    "n?+YjX6DS9bG|v>cgEk9fBR#4%zk)LB%#Zd2X&gHu`kkkKkKQG@l6paRv0zTePpb+jq$z0_EcZ~UVp1=I1&0x<3!x^HNKjkQ!(qu"
    "e%2GL&yysKHdzp97{gPvG@HH%I0d8_I2XIAkXu}Zam3PudxC;um3xN`Wf5&LrMo4ZwKJ9~E|u_gcML1NIDX)A?}1s&hAC4*_QQyq"
    "?EzMeL1vLxtSbey)PgT@ji(AYEQx!ex1+J-YFNzhB-;$PM8rbh_~Nt_UM%gr2Cv|y<E3K>VM^<H4N|e$r%~gKE!(<1oL9{;nWyqA"
    "YP@nhP#6Va6e_{?ZpPd!2!tdM&b^P{UvpMX=_W+vYX_&qmr8OAagq+kWSZ;|a1F0v)#komK-o`Tp`*fQT#@tikmV6qN{Kw8@rWGe"
    "?_2XoJwO@Hxt&(SZFSnq%k5Sx@S9%qx)(HprRKGz#<fP<(^$zPhQ6j!o+!j(R*SeeLV<Q`3aiY^QWf`^&lNWpp2>B<RM;1K_151{"
    "&!4?>WdUDeJ)Rnkh~&W5x$0j}@D!6mWin!}2x3V)kDlkf0CNMFAK;ms^W&;?uzJ9lYPf)lYXwgq7Bt<-SsJ#+q{WE~QPxj(>Wma1"
    ">NFQJ^bGbu#(j71NbT9_v60^`QojvAqpx-nQ)(O!+Iq12lU~=g?gW-rwBtA*{7awx*Bw*Z?T$YtDc{wKoJhQUo5^@vZ&2by##>=Z"
    "x8Oa!3#X}TP8@2ea&hC##pzt7bluwpz3;+m?OCP3Rw_mfT^tV&K!STC0F@qVST}IslMM}@4oqtJjQ&2isifHEroTp~%D?9~H8?K_"
    "R5o3ZYJ6ivhmv|EDXVT>hFvwYW|l|UD|>N9UDF-MNvfP_u)RE#WWjcwc}ql(#hFSnWn1v%;kRj~ctc2QeO=r#5uAJnRA$mA;Vg40"
    "IkEdPvlC|CnJA?<%OkKx8AFd^B>qbeb+>wVsF)!SrYPAH?c!`K6W|fci>g=mJh3bV_jfd0#i?S?!AkL1r6doy%1r<`180lZ0?v0!"
    "aM6KFRDhZTm*LI5jk*JGL36+FJHqXVW_y`0b%GXe1?{G{+;-iihSvy0tIajEDDHJwgf>h;hvMC^o%#Cw#yG4v@b-~zgm)ac`G0cw"
    "XOtXv56J<(*bm^0(hCGHa){tz;h?Az*+Ct^Hm!DO^_6k_dH~<RqZ<4GKN34bs6$p@cgO<_9QfIRUnt$Lw%{3->Gva5hJub2(l$?t"
    "zEmh`(i;w}<d4{e-~Y_q`hVa~-Jt"
)
"""An episode of two agents, whose class had no infos of the environment yet."""


def test_an_episode_of_several_agents_is_read():
    episode = pickle.loads(zlib.decompress(base64.b85decode(OLD)))
    assert episode.id_ == "old" and len(episode) == 1 and set(episode.agent_ids) == {"a", "b"}
    assert episode.get_observations(-1) == {"a": 2.0} and episode.get_rewards(-1)["a"] == 1.5
    assert episode.get_infos(-1, agent_ids=["a"]) == {"a": {}}
    episode.add_env_step({"a": 3.0}, {"a": 0}, {"a": 0.5}, {"a": {"seen": 1}})
    assert episode.get_observations(-1) == {"a": 3.0} and episode.get_infos(-1) == {"a": {"seen": 1}}
